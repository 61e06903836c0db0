#!/usr/bin/env bash
# A real single-node Apache Kafka (KRaft) for local work, without Docker: needs a JDK 17 or newer and Maven.
#   deploy/kafka/start.sh [DIRECTORY]     default .data/kafka; jars, log and state go there
#   KAFKA_PORT=9092                       the loopback port; the controller takes the next one
# Runs in the foreground; Ctrl-C stops it. The state is kept: remove DIRECTORY for a fresh broker.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
dir=${1:-$here/../../.data/kafka}
port=${KAFKA_PORT:-9092}
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)

if [ ! -e "$dir/lib/.complete" ]; then
    mvn -q -B -f "$here/pom.xml" dependency:copy-dependencies -DoutputDirectory="$dir/lib"
    touch "$dir/lib/.complete"
fi

cat > "$dir/server.properties" <<PROPERTIES
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$((port + 1))
listeners=PLAINTEXT://127.0.0.1:$port,CONTROLLER://127.0.0.1:$((port + 1))
advertised.listeners=PLAINTEXT://127.0.0.1:$port
controller.listener.names=CONTROLLER
log.dirs=$dir/data
auto.create.topics.enable=false
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
group.consumer.min.session.timeout.ms=3000
group.consumer.min.heartbeat.interval.ms=200
log.cleaner.dedupe.buffer.size=2097152
num.network.threads=2
num.io.threads=2
PROPERTIES
cat > "$dir/log4j2.properties" <<PROPERTIES
rootLogger.level=warn
rootLogger.appenderRef.stderr.ref=stderr
appender.stderr.type=Console
appender.stderr.name=stderr
appender.stderr.target=SYSTEM_ERR
appender.stderr.layout.type=PatternLayout
appender.stderr.layout.pattern=%d %p %c{1}: %m%n
PROPERTIES

java=(java -Xmx256m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 "-Dlog4j2.configurationFile=$dir/log4j2.properties" -cp "$dir/lib/*")
if [ ! -e "$dir/data/meta.properties" ]; then
    "${java[@]}" kafka.tools.StorageTool format -t "$("${java[@]}" kafka.tools.StorageTool random-uuid 2>/dev/null)" \
        -c "$dir/server.properties" >/dev/null
fi
echo "Kafka on 127.0.0.1:$port (state in $dir)"
exec "${java[@]}" kafka.Kafka "$dir/server.properties"
