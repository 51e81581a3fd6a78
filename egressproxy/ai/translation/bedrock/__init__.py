"""Amazon Bedrock's Converse, as a provider."""
