import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import java.util.Map;
import java.util.TreeMap;
import javax.security.auth.login.AppConfigurationEntry;
import org.apache.kafka.common.config.types.Password;
import org.apache.kafka.common.security.JaasContext;

/** Reads texts of sasl.jaas.config (hex, one a line) with Kafka's own class; answers module, then options, in hex. */
public final class JaasTruth {
    public static void main(String[] args) throws Exception {
        var in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        for (String line; (line = in.readLine()) != null; ) {
            System.out.println(answer(new String(HexFormat.of().parseHex(line), StandardCharsets.UTF_8)));
        }
    }

    private static String answer(String text) {
        try {
            var found = JaasContext.loadClientContext(Map.of("sasl.jaas.config", new Password(text)));
            AppConfigurationEntry entry = found.configurationEntries().get(0);
            var words = new StringBuilder(hex(entry.getLoginModuleName()));
            new TreeMap<>(entry.getOptions()).forEach(
                (key, value) -> words.append(' ').append(hex(key)).append(' ').append(hex(String.valueOf(value))));
            return words.toString();
        } catch (RuntimeException error) {
            return "-";
        }
    }

    private static String hex(String text) {
        return "x" + HexFormat.of().formatHex(text.getBytes(StandardCharsets.UTF_8));
    }
}
