"""The service over HTTP: what it answers, who may ask, and how it is started."""
