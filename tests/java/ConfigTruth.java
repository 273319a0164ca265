import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import java.util.Properties;
import java.util.TreeMap;
import java.util.regex.Pattern;
import java.util.regex.PatternSyntaxException;

/**
 * Says what the JVM makes of properties bytes and of patterns.
 *
 * One line in, one line of JSON out. In: "P hex(file)" or "R hex(pattern) hex(name) ...";
 * texts are UTF-8. Out: an object of properties, an array of booleans, or a string that is an error.
 */
public final class ConfigTruth {
    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.US_ASCII);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split(" ", -1);
            out.println(words[0].equals("P") ? properties(words[1]) : matches(words));
        }
        out.flush();
    }

    private static String properties(String hex) throws Exception {
        Properties properties = new Properties();
        try {
            properties.load(new ByteArrayInputStream(HexFormat.of().parseHex(hex)));
        } catch (IllegalArgumentException error) {
            return json(String.valueOf(error.getMessage()));
        }
        StringBuilder text = new StringBuilder("{");
        for (String key : new TreeMap<Object, Object>(properties).keySet().toArray(new String[0])) {
            if (text.length() > 1) {
                text.append(", ");
            }
            text.append(json(key)).append(": ").append(json(properties.getProperty(key)));
        }
        return text.append("}").toString();
    }

    private static String matches(String[] words) {
        Pattern pattern;
        try {
            pattern = Pattern.compile(decode(words[1]));
        } catch (PatternSyntaxException error) {
            return json(error.getDescription());
        } catch (RuntimeException error) {
            return json(error.toString());
        }
        StringBuilder text = new StringBuilder("[");
        for (int i = 2; i < words.length; i++) {
            if (i > 2) {
                text.append(", ");
            }
            text.append(pattern.matcher(decode(words[i])).matches());
        }
        return text.append("]").toString();
    }

    private static String decode(String hex) {
        return new String(HexFormat.of().parseHex(hex), StandardCharsets.UTF_8);
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
