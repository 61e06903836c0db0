import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.springframework.kafka.core.DefaultKafkaConsumerFactory;
import org.springframework.kafka.core.DefaultKafkaProducerFactory;
import org.springframework.kafka.listener.ContainerProperties;
import org.springframework.kafka.listener.KafkaMessageListenerContainer;
import org.springframework.kafka.requestreply.CorrelationKey;
import org.springframework.kafka.requestreply.ReplyingKafkaTemplate;
import org.springframework.kafka.requestreply.RequestReplyFuture;
import org.springframework.kafka.support.KafkaHeaders;
import org.springframework.kafka.support.TopicPartitionOffset;

/**
 * Sends every request of its arguments at once, then prints for each, in order, what the template matched to it:
 * correlation id (hex), partition of the reply, the reply. {@code BROKERS REQUESTS REPLIES PARTITION REQUEST...}; a
 * PARTITION below 0 subscribes to the whole reply topic with the template's own correlation ids (the bytes of a UUID),
 * any other is the only one that is read, with ids that are no text in any encoding.
 */
public final class RoundTrip {
    private static final Duration PATIENCE = Duration.ofSeconds(30);
    private static final byte[] NO_TEXT = {0, -1, -2, (byte) 0x80, 0, 10, 13};

    public static void main(String[] arguments) throws Exception {
        String brokers = arguments[0];
        String requests = arguments[1];
        String replies = arguments[2];
        int partition = Integer.parseInt(arguments[3]);
        boolean whole = partition < 0;

        Map<String, Object> common = Map.of("bootstrap.servers", brokers);
        Map<String, Object> reading = new HashMap<>(common);
        reading.put("auto.offset.reset", "earliest");
        ContainerProperties replyTo =
                whole ? new ContainerProperties(replies) : new ContainerProperties(new TopicPartitionOffset(replies, partition));
        replyTo.setGroupId("spring-" + UUID.randomUUID());
        var producers =
                new DefaultKafkaProducerFactory<>(common, new ByteArraySerializer(), new ByteArraySerializer());
        var consumers =
                new DefaultKafkaConsumerFactory<>(reading, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        var template =
                new ReplyingKafkaTemplate<byte[], byte[], byte[]>(
                        producers, new KafkaMessageListenerContainer<>(consumers, replyTo));
        template.setDefaultReplyTimeout(PATIENCE);
        template.setSharedReplyTopic(true);
        if (!whole) {
            template.setCorrelationIdStrategy(record -> new CorrelationKey(binary(record.value())));
        }
        template.afterPropertiesSet();
        template.start();
        try {
            if (!template.waitForAssignment(PATIENCE)) {
                throw new IllegalStateException("no reply partition was assigned");
            }
            Map<Integer, RequestReplyFuture<byte[], byte[], byte[]>> sent = new LinkedHashMap<>();
            for (int at = 4; at < arguments.length; at++) {
                byte[] value = arguments[at].getBytes(StandardCharsets.UTF_8);
                sent.put(at, template.sendAndReceive(new ProducerRecord<>(requests, value)));
            }
            for (RequestReplyFuture<byte[], byte[], byte[]> each : sent.values()) {
                print(each.get(PATIENCE.toSeconds(), TimeUnit.SECONDS));
            }
        } finally {
            template.stop();
            template.destroy();
            producers.destroy();
        }
    }

    /** Bytes that no text has, then the request's hash: every request of a run has another id. */
    private static byte[] binary(byte[] value) {
        return ByteBuffer.allocate(NO_TEXT.length + Integer.BYTES)
                .put(NO_TEXT)
                .putInt(Arrays.hashCode(value))
                .array();
    }

    private static void print(ConsumerRecord<byte[], byte[]> reply) {
        byte[] correlation = reply.headers().lastHeader(KafkaHeaders.CORRELATION_ID).value();
        String text = new String(reply.value(), StandardCharsets.UTF_8);
        System.out.println(HexFormat.of().formatHex(correlation) + "\t" + reply.partition() + "\t" + text);
    }
}
