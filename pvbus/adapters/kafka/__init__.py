"""The bus on Kafka: the only importer of aiokafka."""
