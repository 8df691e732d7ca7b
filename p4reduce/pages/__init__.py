"""Pages for people: one self-contained HTML file each, which loads nothing from a network.

`markup.py` escapes text, `document.py` puts a page together, and all pages share `assets/page.css`.
"""
