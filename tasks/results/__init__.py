"""What stages find, as records, and known causes of failures; without torch. Edits change stage keys."""
