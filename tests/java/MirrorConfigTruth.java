package org.apache.kafka.connect.mirror;

import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.connect.connector.Connector;

/**
 * Says what Kafka's own MirrorMaker derives from a properties file, one file (in hex) per line.
 *
 * The first line of output has the ConfigDefs of the three connectors; then per file the worker and
 * connector configs of every flow, or a string that is an error.
 */
public final class MirrorConfigTruth {
    private static final List<Connector> CONNECTORS = List.of(
        new MirrorSourceConnector(), new MirrorHeartbeatConnector(), new MirrorCheckpointConnector());

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.US_ASCII);
        out.println(definitions());
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            out.println(flows(HexFormat.of().parseHex(line)));
        }
        out.flush();
        // Some class of the connectors leaves a thread behind that is no daemon.
        System.exit(0);
    }

    private static String definitions() {
        Map<String, String> all = new TreeMap<>();
        for (Connector connector : CONNECTORS) {
            Map<String, String> defaults = new TreeMap<>();
            for (ConfigDef.ConfigKey key : connector.config().configKeys().values()) {
                Object value = key.defaultValue == ConfigDef.NO_DEFAULT_VALUE ? "<required>" : key.defaultValue;
                String text = value == null ? "" : ConfigDef.convertToString(value, key.type);
                defaults.put(key.name, json(key.type + " " + text));
            }
            all.put(connector.getClass().getSimpleName(), object(defaults));
        }
        return object(all);
    }

    private static String flows(byte[] file) throws Exception {
        Properties properties = new Properties();
        properties.load(new ByteArrayInputStream(file));
        Map<String, String> texts = new HashMap<>();
        properties.forEach((key, value) -> texts.put((String) key, (String) value));
        // Not derived from: without it every config scans all classes of the class path.
        texts.put("plugin.discovery", "service_load");
        Map<String, String> result = new TreeMap<>();
        try {
            MirrorMakerConfig config = new MirrorMakerConfig(texts);
            for (SourceAndTarget flow : config.clusterPairs()) {
                Map<String, String> configs = new TreeMap<>();
                configs.put("worker", strings(config.workerConfig(flow)));
                for (Connector connector : CONNECTORS) {
                    configs.put(connector.getClass().getSimpleName(),
                        strings(config.connectorBaseConfig(flow, connector.getClass())));
                }
                result.put(flow.toString(), object(configs));
            }
        } catch (RuntimeException error) {
            return json(error.toString());
        }
        return object(result);
    }

    private static String strings(Map<String, String> map) {
        Map<String, String> quoted = new TreeMap<>();
        map.forEach((key, value) -> quoted.put(key, json(value)));
        return object(quoted);
    }

    private static String object(Map<String, String> members) {
        StringBuilder text = new StringBuilder("{");
        members.forEach((key, value) -> {
            text.append(text.length() > 1 ? ", " : "").append(json(key)).append(": ").append(value);
        });
        return text.append("}").toString();
    }

    private static String json(String text) {
        StringBuilder result = new StringBuilder("\"");
        for (char c : text.toCharArray()) {
            if (c < 0x20 || c > 0x7e || c == '"' || c == '\\') {
                result.append(String.format("\\u%04x", (int) c));
            } else {
                result.append(c);
            }
        }
        return result.append('"').toString();
    }
}
