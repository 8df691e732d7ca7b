"""Rules of all pages: text is escaped, data ends no script, nothing is loaded and no other script runs."""

from __future__ import annotations

import base64
import hashlib

from p4reduce.pages.document import document, embedded
from p4reduce.pages.markup import Markup, element


def test_element_escapes_all_but_markup() -> None:
    made = element("p", "<&\"'", Markup("<b></b>"), None, class_="<\"'", data_x=1.5, hidden=True, title=False)
    assert made == '<p class="&lt;&quot;&#x27;" data-x="1.5" hidden>&lt;&amp;&quot;&#x27;<b></b></p>'


def test_data_in_the_page_is_json_that_ends_no_script() -> None:
    assert embedded({"a": "</script>&"}) == '{"a":"\\u003c/script\\u003e\\u0026"}'


def test_a_page_runs_its_own_scripts_alone() -> None:
    page = document("<b>", Markup("<p></p>"), data={"one": ["</script>"]}, scripts=["let a;"])
    digest = base64.b64encode(hashlib.sha256(b"let a;").digest()).decode()
    assert (
        f"default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; script-src 'sha256-{digest}'"
        in page
    )
    assert "<title>&lt;b&gt; – p4reduce</title>" in page
    assert page.count("</script>") == 2
