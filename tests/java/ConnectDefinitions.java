package org.apache.kafka.connect.runtime;

import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.common.config.ConfigValue;
import org.apache.kafka.common.config.types.Password;
import org.apache.kafka.connect.connector.Connector;
import org.apache.kafka.connect.converters.ByteArrayConverter;
import org.apache.kafka.connect.mirror.MirrorCheckpointConnector;
import org.apache.kafka.connect.mirror.MirrorHeartbeatConnector;
import org.apache.kafka.connect.mirror.MirrorSourceConnector;
import org.apache.kafka.connect.json.JsonConverter;
import org.apache.kafka.connect.storage.StringConverter;

/**
 * Prints how Kafka's own Connect describes the keys of the framework and of the mirror connectors, and
 * what its ConfigDefs say of wrong values. No documentation texts: ours are our own.
 */
public final class ConnectDefinitions {
    private static final String[][] WRONG = {
        {"tasks.max", "zero"}, {"tasks.max", "0"}, {"tasks.max", ""}, {"tasks.max", null},
        {"tasks.max", "99999999999"}, {"tasks.max", " 7 "}, {"tasks.max", "-1"},
        {"name", ""}, {"name", "a\nb"}, {"name", "a\u0001\nb"}, {"name", null}, {"name", "  "},
        {"tasks.max.enforce", "maybe"}, {"tasks.max.enforce", null},
        {"key.converter", "no.Such"}, {"transforms", "a,a"}, {"transforms", null}, {"transforms", "a,,b"},
        {"predicates", "x, x"}, {"config.action.reload", "never"}, {"config.action.reload", "NONE"},
        {"config.action.reload", null},
        {"errors.tolerance", "some"}, {"errors.tolerance", "ALL"}, {"errors.retry.timeout", "1.5"},
        {"errors.retry.delay.max.ms", "x"}, {"errors.log.enable", "1"},
        {"topic.creation.groups", "a,a"}, {"topic.creation.groups", null},
        {"exactly.once.support", "maybe"}, {"exactly.once.support", null}, {"transaction.boundary", "x"},
        {"transaction.boundary.interval.ms", "0"}, {"transaction.boundary.interval.ms", "x"},
        {"offsets.storage.topic", ""}, {"offsets.storage.topic", " "},
        {"replication.factor", "two"}, {"replication.factor", "40000"}, {"replication.factor", "0"},
        {"replication.factor", null},
        {"offset-syncs.topic.replication.factor", "40000"}, {"offset-syncs.topic.replication.factor", "0"},
        {"offset-syncs.topic.location", "nowhere"}, {"offset-syncs.topic.location", "SOURCE"},
        {"offset-syncs.topic.location", null},
        {"topics", null}, {"topics", ""}, {"topics", "["}, {"topics", "a,,b"}, {"topics", "a,a"},
        {"topics.exclude", null}, {"config.properties.exclude", null},
        {"offset.lag.max", "-1"}, {"offset.lag.max", "x"},
        {"sync.topic.configs.enabled", "yes"}, {"sync.topic.configs.interval.seconds", "0"},
        {"refresh.topics.interval.seconds", "-5"}, {"refresh.topics.interval.seconds", "1m"},
        {"consumer.poll.timeout.ms", "-1"}, {"admin.timeout.ms", "0"},
        {"replication.policy.class", "no.Such"}, {"replication.policy.class", null},
        {"topic.filter.class", "no.Such"}, {"source.cluster.alias", null}, {"source.cluster.alias", ""},
        {"target.cluster.alias", null},
        {"security.protocol", "FTP"}, {"security.protocol", "ssl"}, {"security.protocol", null},
        {"ssl.endpoint.identification.algorithm", null}, {"sasl.login.refresh.window.factor", "2"},
        {"sasl.login.refresh.window.factor", "x"}, {"sasl.login.refresh.buffer.seconds", "5000"},
        {"ssl.enabled.protocols", ""}, {"ssl.enabled.protocols", null}, {"metric.reporters", null},
        {"metric.names.formats", "old"}, {"metric.names.formats", ""}, {"metric.reporters", "no.Such"},
        {"emit.heartbeats.interval.seconds", "x"}, {"heartbeats.topic.replication.factor", "99999"},
        {"groups", null}, {"emit.checkpoints.interval.seconds", "x"}, {"forwarding.admin.class", "no.Such"},
    };

    public static void main(String[] args) throws Exception {
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.US_ASCII);
        ConfigDef source = SourceConnectorConfig.configDef();
        ConfigDef sink = SinkConnectorConfig.configDef();
        out.println("{\"source framework\": " + keys(source) + ",");
        out.println("\"source groups\": " + texts(source.groups()) + ",");
        out.println("\"sink framework\": " + keys(sink) + ",");
        out.println("\"sink groups\": " + texts(sink.groups()) + ",");
        out.println("\"ByteArrayConverter\": " + keys(new ByteArrayConverter().config()) + ",");
        out.println("\"JsonConverter\": " + keys(new JsonConverter().config()) + ",");
        out.println("\"StringConverter\": " + keys(new StringConverter().config()) + ",");
        List<String> cases = new ArrayList<>();
        for (Connector connector : List.of(new MirrorSourceConnector(), new MirrorCheckpointConnector(),
                new MirrorHeartbeatConnector())) {
            String name = connector.getClass().getSimpleName();
            ConfigDef own = connector.config();
            out.println(json(name) + ": " + keys(own) + ",");
            out.println(json(name + " groups") + ": " + texts(own.groups()) + ",");
            for (String[] wrong : WRONG) {
                boolean mine = own.configKeys().containsKey(wrong[0]);
                if (mine || connector instanceof MirrorSourceConnector && source.configKeys().containsKey(wrong[0])) {
                    cases.add("[" + json(name) + ", " + json(wrong[0]) + ", " + json(wrong[1]) + ", "
                        + said(mine ? own : source, wrong) + "]");
                }
            }
        }
        out.println("\"wrong\": [\n" + String.join(",\n", cases) + "]}");
        out.flush();
        System.exit(0);
    }

    private static String said(ConfigDef def, String[] wrong) {
        Map<String, String> props = new HashMap<>();
        props.put("name", "n");
        props.put("connector.class", "org.apache.kafka.connect.mirror.MirrorSourceConnector");
        props.put("source.cluster.alias", "a");
        props.put("source.cluster.bootstrap.servers", "a:1");
        props.put("target.cluster.bootstrap.servers", "b:1");
        props.put(wrong[0], wrong[1]);
        try {
            List<String> all = new ArrayList<>();
            for (ConfigValue value : def.validate(props)) {
                value.errorMessages().forEach(text -> all.add(value.name() + ": " + text));
            }
            String shown = def.validateAll(props).get(wrong[0]).value() == null ? null
                : ConfigDef.convertToString(def.validateAll(props).get(wrong[0]).value(),
                    def.configKeys().get(wrong[0]).type);
            return json(shown) + ", " + texts(all);
        } catch (RuntimeException error) {
            return json("throws") + ", " + texts(List.of(error.toString()));
        }
    }

    private static String keys(ConfigDef def) {
        List<String> rows = new ArrayList<>();
        for (ConfigDef.ConfigKey key : def.configKeys().values()) {
            boolean required = key.defaultValue == ConfigDef.NO_DEFAULT_VALUE;
            String value = required || key.defaultValue == null ? null
                : key.defaultValue instanceof Password ? Password.HIDDEN
                : ConfigDef.convertToString(key.defaultValue, key.type);
            rows.add("[" + String.join(", ", json(key.name), json(key.type.name()),
                String.valueOf(required), json(value), json(key.importance.name()), json(key.group),
                String.valueOf(key.orderInGroup), json(key.width.name()), json(key.displayName),
                texts(key.dependents)) + "]");
        }
        return "[\n" + String.join(",\n", rows) + "]";
    }

    private static String texts(Iterable<String> all) {
        List<String> quoted = new ArrayList<>();
        all.forEach(text -> quoted.add(json(text)));
        return "[" + quoted.stream().collect(Collectors.joining(", ")) + "]";
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
