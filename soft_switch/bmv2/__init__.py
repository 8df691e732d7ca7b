"""BMv2's JSON: `reader` turns the text into objects of `program`, their expressions are those of `syntax`."""
