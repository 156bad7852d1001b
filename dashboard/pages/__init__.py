"""One module a page. :mod:`dashboard.app` imports them; each registers itself and defines ``layout``."""
