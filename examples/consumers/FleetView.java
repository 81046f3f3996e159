// The conditions of every package variant, rebuilt from the public topics alone (Java, kafka-clients).
//
//   java -cp "$KAFKA_HOME/libs/*" FleetView.java kafka:9092 blue            the view as it is now
//   java -cp "$KAFKA_HOME/libs/*" FleetView.java kafka:9092 blue --follow   as it is at SIGTERM or Ctrl-C
//   java -cp "$KAFKA_HOME/libs/*" FleetView.java kafka:9092 blue --wait default/web UID 4 TargetsApplied
//
// "" stands for no prefix. It needs Java 17, and of Kafka's jars kafka-clients and jackson-databind. A line is
// NAMESPACE/NAME, condition type, status and reason, between tabs; the lines are sorted by their bytes. What was
// dropped as a repetition is counted on stderr. Nothing is stored: a restart begins anew. With --replay the changes
// begin at the oldest one that is retained. With --group NAME the position is committed for
// `pvbus lag --subscribers`; it is never read.
//
// With --wait it prints no view: it follows the latest events until the condition of a PackageVariantSet, the one with
// this uid, is True for generation 4 or a later one. TargetsApplied says that each PackageVariant has the new spec,
// Ready that each has made its draft of it.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.InvalidOffsetException;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

public final class FleetView {
    private static final Duration POLL = Duration.ofMillis(500);
    private static final String EVENT_TYPE = "dev.pvbus.condition.changed.v1";
    private static final ObjectMapper JSON = new ObjectMapper();

    /**
     * The last event of each condition, by {@code <Kind>|<namespace>/<name>|<condition type>}. A condition that
     * its object no longer has stays as an event with {@code last}, so that an older event that is delivered
     * again does not bring it back.
     */
    private final Map<String, JsonNode> events = new HashMap<>();

    /** What is waited for: a condition of a set, and the generation that it must speak of. */
    private record Waited(String name, String uid, long generation, String condition) {}

    /** The positions that were committed last. */
    private Map<TopicPartition, OffsetAndMetadata> committed = Map.of();

    private boolean follow;
    private boolean replay;
    private String group;
    private Waited waited;
    private long applied;
    private long repeated;
    private long stale;
    private long unknown;
    private volatile boolean stopped;

    /** Applies a record of the topic of the latest events; a value of null is a tombstone. */
    private void restore(ConsumerRecord<byte[], byte[]> record) {
        String key = new String(record.key(), StandardCharsets.UTF_8);
        if (record.value() == null) {
            events.remove(key);
        } else if (isKnown(record)) {
            events.put(key, parsed(record));
        } else {
            unknown++;
        }
    }

    /** Applies a record of the topic of changes, unless it or a later one is known. */
    private void apply(ConsumerRecord<byte[], byte[]> record) {
        if (!isKnown(record)) {
            unknown++;
            return;
        }
        JsonNode event = parsed(record);
        String key = text(event, "kind") + "|" + text(event, "namespace") + "/" + text(event, "name")
            + "|" + text(event.path("condition"), "type");
        JsonNode known = events.get(key);
        if (known != null && text(known, "id").equals(text(event, "id"))) {
            repeated++;
        } else if (known != null && text(known, "time").compareTo(text(event, "time")) > 0) {
            stale++;
        } else {
            applied++;
            events.put(key, event);
        }
    }

    private List<String> lines() {
        List<String> found = new ArrayList<>();
        for (JsonNode event : events.values()) {
            if (text(event, "kind").equals("PackageVariant") && !event.path("last").asBoolean()) {
                JsonNode condition = event.path("condition");
                found.add(String.join("\t", text(event, "namespace") + "/" + text(event, "name"),
                    text(condition, "type"), text(condition, "status"), text(condition, "reason")));
            }
        }
        found.sort((one, other) -> Arrays.compareUnsigned(
            one.getBytes(StandardCharsets.UTF_8), other.getBytes(StandardCharsets.UTF_8)));
        return found;
    }

    /** Whether we know the type of an event; the data of another one may have any fields. */
    private static boolean isKnown(ConsumerRecord<byte[], byte[]> record) {
        var type = record.headers().lastHeader("ce_type");
        return type != null && new String(type.value(), StandardCharsets.UTF_8).equals(EVENT_TYPE);
    }

    private static String text(JsonNode node, String field) {
        return node.path(field).asText("");
    }

    private static JsonNode parsed(ConsumerRecord<byte[], byte[]> record) {
        try {
            return JSON.readTree(record.value());
        } catch (IOException error) {
            throw new IllegalStateException(record.topic() + "-" + record.partition() + ": the value at offset "
                + record.offset() + " is not JSON", error);
        }
    }

    private static List<TopicPartition> partitionsOf(KafkaConsumer<byte[], byte[]> consumer, String topic) {
        var found = consumer.partitionsFor(topic);
        if (found == null || found.isEmpty()) {
            throw new IllegalStateException("no topic " + topic + ": check the prefix, and that pvbus has been started");
        }
        return found.stream().map(each -> new TopicPartition(topic, each.partition())).toList();
    }

    /** Markers of transactions count as offsets, so the position decides, not the last record. */
    private static boolean isBehind(KafkaConsumer<byte[], byte[]> consumer, Map<TopicPartition, Long> ends) {
        return ends.entrySet().stream().anyMatch(end -> consumer.position(end.getKey()) < end.getValue());
    }

    /** Reads everything, the latest events first. Throws InvalidOffsetException if changes were deleted before. */
    private void read(KafkaConsumer<byte[], byte[]> consumer, String prefix) {
        events.clear();
        var changes = partitionsOf(consumer, prefix + "pvbus.conditions");
        var begin = consumer.endOffsets(changes); // before the table: what changes meanwhile comes twice
        readLatest(consumer, prefix);
        if (replay) {
            begin = consumer.beginningOffsets(changes);
        }
        consumer.assign(changes);
        begin.forEach(consumer::seek);
        while (follow && !stopped) {
            applyNext(consumer);
        }
        var ends = consumer.endOffsets(changes);
        while (isBehind(consumer, ends)) {
            applyNext(consumer);
        }
    }

    private void readLatest(KafkaConsumer<byte[], byte[]> consumer, String prefix) {
        var latest = partitionsOf(consumer, prefix + "pvbus.conditions.latest");
        consumer.assign(latest);
        consumer.seekToBeginning(latest);
        var ends = consumer.endOffsets(latest);
        while (isBehind(consumer, ends)) {
            consumer.poll(POLL).forEach(this::restore);
        }
    }

    /** Whether the last event of the set's condition does not say True of this generation or a later one. */
    private boolean isMissing() {
        JsonNode event = events.get("PackageVariantSet|" + waited.name + "|" + waited.condition);
        return event == null || !text(event, "uid").equals(waited.uid)
            || !text(event.path("condition"), "status").equals("True")
            || event.path("condition").path("observedGeneration").asLong() < waited.generation;
    }

    /** Follows the latest events until the condition is as wanted. Nothing is judged before the end is reached: only
     * the last event of a key counts. */
    private void await(KafkaConsumer<byte[], byte[]> consumer, String prefix) {
        readLatest(consumer, prefix);
        System.err.printf("waiting for %s of %s at generation %d%n", waited.condition, waited.name, waited.generation);
        while (isMissing()) {
            if (stopped) {
                return;
            }
            consumer.poll(POLL).forEach(this::restore);
        }
        System.out.println(waited.name + ": " + waited.condition + " is True for generation " + waited.generation);
    }

    private void applyNext(KafkaConsumer<byte[], byte[]> consumer) {
        consumer.poll(POLL).forEach(this::apply);
        if (group != null) {
            var positions = new HashMap<TopicPartition, OffsetAndMetadata>();
            consumer.assignment().forEach(each -> positions.put(each, new OffsetAndMetadata(consumer.position(each))));
            if (!positions.equals(committed)) {
                consumer.commitSync(positions);
                committed = positions;
            }
        }
    }

    private void run(String bootstrap, String prefix) {
        Properties options = new Properties();
        options.put("bootstrap.servers", bootstrap);
        options.put("isolation.level", "read_committed"); // else events of steps that were never made are read, too
        options.put("enable.auto.commit", "false");
        options.put("auto.offset.reset", "none"); // else a reader that was away for too long skips what it missed
        options.put("allow.auto.create.topics", "false");
        if (group != null) {
            options.put("group.id", group);
        }
        var bytes = new ByteArrayDeserializer();
        try (var consumer = new KafkaConsumer<byte[], byte[]>(options, bytes, bytes)) {
            if (waited != null) {
                await(consumer, prefix);
                return;
            }
            for (boolean isRead = false; !isRead;) {
                try {
                    read(consumer, prefix);
                    isRead = true;
                } catch (InvalidOffsetException error) {
                    System.err.println("changes were deleted before they were read: beginning anew");
                }
            }
        }
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        lines().forEach(line -> out.print(line + "\n"));
        out.flush();
        System.err.printf("applied %d, repeated %d, stale %d, unknown %d%n", applied, repeated, stale, unknown);
    }

    private static void fail() {
        System.err.println("usage: FleetView HOST:PORT[,HOST:PORT...] PREFIX [--follow] [--replay] [--group NAME]"
            + " [--wait NAMESPACE/SET UID GENERATION CONDITION]");
        System.exit(2);
    }

    public static void main(String[] arguments) {
        if (arguments.length < 2) {
            fail();
        }
        FleetView view = new FleetView();
        for (int n = 2; n < arguments.length; n++) {
            switch (arguments[n]) {
                case "--follow" -> view.follow = true;
                case "--replay" -> view.replay = true;
                case "--group" -> {
                    if (++n == arguments.length) {
                        fail();
                    }
                    view.group = arguments[n];
                }
                case "--wait" -> {
                    if (n + 4 >= arguments.length) {
                        fail();
                    }
                    long generation = Long.parseLong(arguments[n + 3]);
                    view.waited = new Waited(arguments[n + 1], arguments[n + 2], generation, arguments[n + 4]);
                    n += 4;
                }
                default -> fail();
            }
        }
        Thread main = Thread.currentThread();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            view.stopped = true;
            try {
                main.join(); // the JVM ends with the hooks: the view is printed before
            } catch (InterruptedException ignored) {
                Thread.currentThread().interrupt();
            }
        }));
        view.run(arguments[0], arguments[1].isEmpty() ? "" : arguments[1] + ".");
    }
}
