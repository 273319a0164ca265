import java.math.BigDecimal;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.Date;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.connect.data.Decimal;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.data.SchemaBuilder;
import org.apache.kafka.connect.data.Struct;
import org.apache.kafka.connect.data.Time;
import org.apache.kafka.connect.data.Timestamp;
import org.apache.kafka.connect.json.JsonConverter;
import org.apache.kafka.connect.storage.SimpleHeaderConverter;
import org.apache.kafka.connect.storage.StringConverter;

/** Prints what Kafka's own converters make of some values; the names stand in tests/unit/runtime/test_plugins.py. */
public final class Conversions {
    private static final List<String> LINES = new ArrayList<>();

    public static void main(String[] args) {
        Schema point = SchemaBuilder.struct().name("geo.Point").version(2).doc("a \"point\"")
            .field("x", Schema.INT32_SCHEMA).field("label", Schema.OPTIONAL_STRING_SCHEMA)
            .field("w", SchemaBuilder.float64().defaultValue(1.5).build()).build();
        Struct struct = new Struct(point).put("x", 7);
        Schema numbers = SchemaBuilder.array(Schema.INT64_SCHEMA).optional().build();
        Schema byName = SchemaBuilder.map(Schema.STRING_SCHEMA, Schema.BOOLEAN_SCHEMA).build();
        Schema byNumber = SchemaBuilder.map(Schema.INT32_SCHEMA, Schema.STRING_SCHEMA).build();
        Map<Object, Object> mixed = new LinkedHashMap<>();
        mixed.put("a", Arrays.asList(1L, 2.5, null, true));
        mixed.put("b", "q\"\\\n\u00e9\u0007");
        Map<Object, Object> numbered = new LinkedHashMap<>();
        numbered.put(1, "one");

        all("null", null, null);
        all("optional null", Schema.OPTIONAL_STRING_SCHEMA, null);
        all("text", Schema.STRING_SCHEMA, "h\u00e9 \"x\"");
        all("bare text", null, "plain");
        all("number", null, 5L);
        all("double", Schema.FLOAT64_SCHEMA, 1.0e10);
        all("small double", null, 1.5e-5);
        all("plain double", null, 123456.75);
        all("float", Schema.FLOAT32_SCHEMA, 1.1f);
        all("nan", null, Double.NaN);
        all("boolean", Schema.BOOLEAN_SCHEMA, true);
        all("bytes", Schema.BYTES_SCHEMA, new byte[] {1, 2, (byte) 255});
        all("struct", point, struct);
        all("array", numbers, Arrays.asList(1L, -2L));
        all("map by name", byName, Map.of("on", true));
        all("map by number", byNumber, numbered);
        all("bare map", null, mixed);
        all("bare map by number", null, numbered);
        all("decimal", Decimal.schema(2), new BigDecimal("-12.34"));
        all("decimal of 2 bytes", Decimal.schema(0), new BigDecimal("128"));
        all("date", org.apache.kafka.connect.data.Date.SCHEMA, new Date(86_400_000L * 365));
        all("time", Time.SCHEMA, new Date(3_723_004L));
        all("timestamp", Timestamp.SCHEMA, new Date(1_700_000_000_123L));
        Schema filled = SchemaBuilder.int16().optional().defaultValue((short) 3).parameter("p", "v").build();
        all("default", filled, null);
        System.out.println("{\n" + String.join(",\n", LINES) + "\n}");
    }

    private static void all(String name, Schema schema, Object value) {
        LINES.add("\"" + name + "\": {" + String.join(", ",
            one("enveloped", () -> json(Map.of(), schema, value)),
            one("bare", () -> json(Map.of("schemas.enable", "false"), schema, value)),
            one("numeric", () -> json(Map.of("schemas.enable", "false", "decimal.format", "NUMERIC"), schema, value)),
            one("unfilled", () -> json(
                Map.of("schemas.enable", "false", "replace.null.with.default", "false"), schema, value)),
            one("string", () -> {
                if (value instanceof byte[] || value instanceof Struct || value instanceof Date) {
                    throw new IllegalArgumentException("means nothing to a reader");
                }
                StringConverter converter = new StringConverter();
                converter.configure(Map.of("converter.type", "value"));
                return converter.fromConnectData("t", schema, value);
            }),
            one("header", () -> new SimpleHeaderConverter().fromConnectHeader("t", "h", schema, value))) + "}");
    }

    private static byte[] json(Map<String, String> keys, Schema schema, Object value) {
        JsonConverter converter = new JsonConverter();
        Map<String, String> config = new LinkedHashMap<>(keys);
        config.put("converter.type", "value");
        converter.configure(config);
        return converter.fromConnectData("t", schema, value);
    }

    private interface Conversion {
        byte[] run();
    }

    private static String one(String how, Conversion conversion) {
        String text;
        try {
            byte[] bytes = conversion.run();
            text = bytes == null ? "null" : "\"" + Base64.getEncoder().encodeToString(bytes) + "\"";
        } catch (RuntimeException error) {
            text = "\"refused\"";
        }
        return "\"" + how + "\": " + text;
    }
}
