"""Presidio's analyzer behind its REST API: python presidio_service.py PORT [MODEL].

The engine is that of the package presidio-analyzer. MODEL is an installed model of spaCy, such as en_core_web_lg.
Default: a pipeline without weights, with rules that know two people.
"""

import json
import sys
import tempfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import spacy
from presidio_analyzer import AnalyzerEngine, AnalyzerRequest, BatchAnalyzerEngine, RecognizerRegistry
from presidio_analyzer.nlp_engine import SpacyNlpEngine
from presidio_analyzer.predefined_recognizers import CryptoRecognizer, SpacyRecognizer

model = sys.argv[2] if len(sys.argv) > 2 else ""
if not model:
    model = tempfile.mkdtemp()
    pipeline = spacy.blank("en")
    ruler = pipeline.add_pipe("entity_ruler")
    ruler.add_patterns([{"label": "PERSON", "pattern": name} for name in ("Zoë Quimby", "Ng Văn")])
    pipeline.to_disk(model)
nlp = SpacyNlpEngine(models=[{"lang_code": "en", "model_name": model}])
nlp.load()
registry = RecognizerRegistry(recognizers=[SpacyRecognizer(), CryptoRecognizer()])
engine = AnalyzerEngine(registry=registry, nlp_engine=nlp, supported_languages=["en"])
batches = BatchAnalyzerEngine(engine)


class Analyzer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """POST /analyze, as the analyzer's own server serves it."""
        asked = AnalyzerRequest(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        print(json.dumps(asked.text), flush=True)
        try:
            if not asked.text:
                raise ValueError("No text provided")
            engine.get_supported_entities(asked.language)
            (found,) = batches.analyze_iterator(
                texts=[asked.text],
                language=asked.language,
                score_threshold=asked.score_threshold,
                entities=asked.entities,
            )
            for each in found:
                del each.recognition_metadata
            status, body = 200, json.dumps(found, default=lambda each: each.to_dict(), sort_keys=True)
        except Exception as error:
            status, body = 500, json.dumps({"error": str(error)})
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body.encode())))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Analyzer).serve_forever()
