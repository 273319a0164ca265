package org.apache.kafka.connect.runtime;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.connect.connector.policy.AllConnectorClientConfigOverridePolicy;
import org.apache.kafka.connect.connector.policy.ConnectorClientConfigOverridePolicy;
import org.apache.kafka.connect.connector.policy.PrincipalConnectorClientConfigOverridePolicy;
import org.apache.kafka.connect.runtime.isolation.Plugins;
import org.apache.kafka.connect.runtime.rest.entities.ConfigInfo;
import org.apache.kafka.connect.runtime.rest.entities.ConfigInfos;
import org.apache.kafka.connect.runtime.standalone.StandaloneConfig;
import org.apache.kafka.connect.runtime.standalone.StandaloneHerder;
import org.apache.kafka.connect.storage.MemoryOffsetBackingStore;
import org.apache.kafka.connect.util.FutureCallback;

/**
 * Says what Kafka's own herder finds wrong in connector configs, one per line: `policy key=value ...`, keys
 * and values in hex, a value `-` for null. The first line of input asks for all entries, in order.
 */
public final class ValidationTruth {
    public static void main(String[] args) throws Exception {
        Map<String, String> props = new HashMap<>(Map.of(
            "bootstrap.servers", "localhost:1", "offset.storage.file.filename", "none",
            "key.converter", "org.apache.kafka.connect.converters.ByteArrayConverter",
            "value.converter", "org.apache.kafka.connect.converters.ByteArrayConverter",
            "plugin.discovery", "service_load"));
        Plugins plugins = new Plugins(props);
        StandaloneConfig config = new StandaloneConfig(props) {
            @Override
            public String kafkaClusterId() {
                return "none";
            }
        };
        Map<String, AbstractHerder> herders = new HashMap<>();
        for (ConnectorClientConfigOverridePolicy policy : List.of(
                new AllConnectorClientConfigOverridePolicy(), new PrincipalConnectorClientConfigOverridePolicy())) {
            MemoryOffsetBackingStore offsets = new MemoryOffsetBackingStore() {
                @Override
                public java.util.Set<Map<String, Object>> connectorPartitions(String name) {
                    return java.util.Set.of();
                }
            };
            Worker worker = new Worker("w", Time.SYSTEM, plugins, config, offsets, policy);
            herders.put(policy.getClass().getSimpleName().substring(0, 3), new StandaloneHerder(worker, "c", policy));
        }
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.US_ASCII);
        boolean all = true;
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split(" ");
            Map<String, String> connector = new HashMap<>();
            for (int i = 1; i < words.length; i++) {
                String[] pair = words[i].split("=", 2);
                connector.put(text(pair[0]), pair[1].equals("-") ? null : text(pair[1]));
            }
            try {
                FutureCallback<ConfigInfos> asked = new FutureCallback<>();
                herders.get(words[0]).validateConnectorConfig(connector, asked);
                out.println(answer(asked.get(60, TimeUnit.SECONDS), all));
            } catch (ExecutionException error) {
                out.println("{\"refused\": " + json(error.getCause().getMessage()) + "}");
            }
            all = false;
        }
        out.flush();
        System.exit(0);
    }

    private static String answer(ConfigInfos infos, boolean all) {
        List<String> rows = new ArrayList<>();
        for (ConfigInfo info : infos.configs()) {
            boolean undefined = info.configKey() == null;
            String name = undefined ? info.configValue().name() : info.configKey().name();
            boolean special = name.contains(".override.") || name.contains(".converter.");
            if (all || undefined || special || !info.configValue().errors().isEmpty()) {
                rows.add("[" + String.join(", ", json(name), String.valueOf(undefined),
                    json(info.configValue().value()), texts(info.configValue().errors()),
                    String.valueOf(info.configValue().visible()),
                    json(undefined ? null : info.configKey().displayName())) + "]");
            }
        }
        return "{\"name\": " + json(infos.name()) + ", \"error_count\": " + infos.errorCount()
            + ", \"groups\": " + texts(infos.groups()) + ", \"configs\": [" + String.join(", ", rows) + "]}";
    }

    private static String text(String hex) {
        return new String(HexFormat.of().parseHex(hex), StandardCharsets.UTF_8);
    }

    private static String texts(List<String> all) {
        return "[" + String.join(", ", all.stream().map(ValidationTruth::json).toList()) + "]";
    }

    private static String json(String text) {
        if (text == null) {
            return "null";
        }
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
