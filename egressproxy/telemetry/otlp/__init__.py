"""The access log and the metrics as OTLP. Imported only where a process exports them, or traces."""
