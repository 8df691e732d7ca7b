"""An operator's document: parsed, compared with what switches hold, applied, taken back."""
