#!/usr/bin/env bash
# Starts the broker with the settings in KAFKA_… variables, as the official image does: KAFKA_LOG_DIRS is
# log.dirs.
set -euo pipefail

properties=/opt/kafka/server.properties
env | sed -n 's/^KAFKA_//p' | while IFS='=' read -r name value; do
  name=${name,,}
  echo "${name//_/.}=$value"
done >"$properties"

java=(java -Xmx512m -XX:+UseSerialGC -Dorg.slf4j.simpleLogger.defaultLogLevel=warn -cp '/opt/kafka/libs/*')
"${java[@]}" kafka.tools.StorageTool format --ignore-formatted -t MkU3OEVBNTcwNTJENDM2Qk -c "$properties"
exec "${java[@]}" kafka.Kafka "$properties"
