"""Extensions and filters of routes, read into ExtensionIR."""
