"""Pages for people: one HTML file with everything in it, which asks no network for anything.

`markup.py` escapes text, `document.py` puts a page together, `assets/page.css` is how all of them look.
"""
