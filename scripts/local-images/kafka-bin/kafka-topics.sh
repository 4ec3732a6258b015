#!/usr/bin/env bash
# Kafka's own topic command.
exec java -Dorg.slf4j.simpleLogger.defaultLogLevel=warn -cp '/opt/kafka/libs/*' org.apache.kafka.tools.TopicCommand "$@"
