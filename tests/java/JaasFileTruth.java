import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.URIParameter;
import java.util.HexFormat;
import java.util.TreeMap;
import javax.security.auth.login.AppConfigurationEntry;
import javax.security.auth.login.Configuration;

/** Reads JAAS files (hex, one a line) with the JVM's own class; answers the one module of KafkaClient, then its options, in hex. */
public final class JaasFileTruth {
    public static void main(String[] args) throws Exception {
        Path file = Files.createTempFile("jaas", ".conf");
        var in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        for (String line; (line = in.readLine()) != null; ) {
            Files.write(file, HexFormat.of().parseHex(line));
            System.out.println(answer(file));
        }
        Files.delete(file);
    }

    private static String answer(Path file) throws Exception {
        try {
            var found = Configuration.getInstance("JavaLoginConfig", new URIParameter(file.toUri()))
                .getAppConfigurationEntry("KafkaClient");
            if (found == null || found.length != 1) {
                return "-";
            }
            AppConfigurationEntry entry = found[0];
            var words = new StringBuilder(hex(entry.getLoginModuleName()));
            new TreeMap<>(entry.getOptions()).forEach(
                (key, value) -> words.append(' ').append(hex(key)).append(' ').append(hex(String.valueOf(value))));
            return words.toString();
        } catch (java.security.NoSuchAlgorithmException | RuntimeException error) {
            return "-";
        }
    }

    private static String hex(String text) {
        return "x" + HexFormat.of().formatHex(text.getBytes(StandardCharsets.UTF_8));
    }
}
