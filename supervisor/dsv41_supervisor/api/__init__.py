"""The supervisor's HTTP API, on the management address.

`routes` is the whole surface, `gate` lets requests in, `asked` reads them, `handlers` answers them, `refused` says why
not, `document` describes it all, `door` bounds who may hold a connection, and `page/` is the status page.
The fleet's key opens everything but `/liveness` and the page's own three files, which hold nothing about the fleet.
"""

from .document import openapi_document
from .handlers import Api
from .routes import MAX_BODY_BYTES, ROUTES, Route, Who

__all__ = ["MAX_BODY_BYTES", "ROUTES", "Api", "Route", "Who", "openapi_document"]
