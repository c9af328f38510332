"""What stage bodies do to programs and payloads. Imports torch and ExecuTorch, so bodies import it when they run."""
