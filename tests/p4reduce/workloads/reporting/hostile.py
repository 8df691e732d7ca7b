"""Runs whose names would like to be code."""

from __future__ import annotations

import json
import re

from p4reduce.workloads.run_file import Run

HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">'\"&"


def hostile(run: Run) -> Run:
    """Return the run with texts that all say something that a careless page would run."""
    document = run.as_json()
    for key in ("machine", "started", "command", "dtype"):
        document[key] = HOSTILE
    document["versions"] = {HOSTILE: HOSTILE}
    document["skipped"] = {HOSTILE: HOSTILE}
    document["topology"]["target"] = HOSTILE
    document["workload"]["name"] = document["workload"]["source"] = HOSTILE
    for span in document["timelines"]["ring"]:
        span["what"] = HOSTILE
    text = json.dumps(document)
    for name in ("ring", "h1", "s1"):
        text = text.replace(json.dumps(name), json.dumps(f"{name}{HOSTILE}"))
    # A colon parts the ends of a link's name: HOSTILE has none.
    text = text.replace('"h1:s1"', json.dumps(f"h1{HOSTILE}:s1{HOSTILE}"))
    text = re.sub(r'"(h\d):s1"', lambda found: json.dumps(f"{found[1]}:s1{HOSTILE}"), text)
    return Run.model_validate_json(text)
