"""Traces: W3C contexts, sampling, spans, and OTLP. Imported only where a Gateway traces."""
