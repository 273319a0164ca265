import java.time.Duration;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.kafka.connect.mirror.RemoteClusterUtils;

/** What RemoteClusterUtils says of a cluster; arguments: bootstrap servers, source alias, groups. */
public final class MirrorClientTruth {
    public static void main(String[] args) throws Exception {
        Map<String, Object> props = Map.of("bootstrap.servers", args[0]);
        System.out.println("heartbeats " + new TreeSet<>(RemoteClusterUtils.heartbeatTopics(props)));
        System.out.println("checkpoints " + new TreeSet<>(RemoteClusterUtils.checkpointTopics(props)));
        System.out.println("upstream " + new TreeSet<>(RemoteClusterUtils.upstreamClusters(props)));
        System.out.println("hops " + RemoteClusterUtils.replicationHops(props, args[1]));
        for (int i = 2; i < args.length; i++) {
            Map<String, String> found = new TreeMap<>();
            RemoteClusterUtils.translateOffsets(props, args[1], args[i], Duration.ofSeconds(5))
                .forEach((tp, offset) -> found.put(tp.toString(), offset.offset() + "/" + offset.metadata()));
            System.out.println("group " + args[i] + " " + found);
        }
    }
}
