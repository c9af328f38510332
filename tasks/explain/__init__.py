"""Why a model cannot be exported, and where a file loses quality. Edits change stage keys."""
