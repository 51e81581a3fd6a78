def main() -> None:
    raise SystemExit("not wired yet")
