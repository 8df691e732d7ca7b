"""The operator's document: parsed, compared with the switches' entries, applied, rolled back."""
