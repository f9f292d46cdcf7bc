"""The API as an OpenAPI 3.1 document, made from the route table alone."""

from __future__ import annotations

from typing import Any

from .. import __version__
from ..fleet.peers import FLEET_HEADER
from . import status_schema
from .routes import MAX_BODY_BYTES, ROUTES, Asked, Route, Who

_MEANS = {
    200: "Done.",
    201: "Made.",
    202: "Taken; what comes of it is seen in the status.",
    400: "The query or the body is not as described here.",
    401: "Wrong or missing fleet key.",
    404: "There is no such thing.",
    408: "The body did not come in time.",
    409: "Refused, or for another fleet; every reason is in error.refusals.",
    413: f"The body is larger than {MAX_BODY_BYTES} bytes.",
    500: "A bug; the supervisor's log has it.",
    503: "The fleet does not serve; the reason is in the answer.",
}
_REFUSAL = {
    "type": "object",
    "required": ["stage", "what", "hint"],
    "properties": {
        "stage": {"type": "string"},
        "what": {"type": "string", "description": "What happened."},
        "hint": {"type": "string", "description": "What to do next."},
        "node": {"type": ["string", "null"]},
        "rank": {"type": ["integer", "null"]},
        "transient": {"type": "boolean", "description": "Whether waiting can help."},
        "check": {"type": ["string", "null"]},
    },
}
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "refusals"],
            "properties": {
                "message": {"type": "string"},
                "refusals": {"type": "array", "items": {"$ref": "#/components/schemas/Refusal"}},
            },
        }
    },
}


def openapi_document() -> dict[str, Any]:
    """Every route, what it takes and what it answers."""
    schemas: dict[str, Any] = {"Error": _ERROR, "Refusal": _REFUSAL, **status_schema.SCHEMAS}
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "dsv41 supervisor",
            "version": __version__,
            "description": "Listens on the node's management address only. Errors are JSON with every reason.",
        },
        "components": {
            "securitySchemes": {
                "fleetKey": {"type": "http", "scheme": "bearer"},
                "fleetName": {"type": "apiKey", "in": "header", "name": FLEET_HEADER},
            },
            "schemas": schemas,
        },
        "security": [_security(Who.FLEET)],
        "paths": paths,
    }


def _security(who: Who) -> dict[str, list[str]]:
    return {"fleetKey": [], "fleetName": []} if who is Who.FLEET else {"fleetKey": []}


def _operation(route: Route, schemas: dict[str, Any]) -> dict[str, Any]:
    statuses = {route.success, 500, *route.also}
    operation: dict[str, Any] = {
        "summary": route.summary + (" Asked of the head." if route.head_only else ""),
        "operationId": route.handler if route.handler != "page" else f"page{route.path.replace('/', '_')}",
    }
    operation["security"] = [] if route.who is Who.ANYONE else [_security(route.who)]
    if route.who is not Who.ANYONE:
        statuses |= {401, 409}
    parameters = _parameters(route)
    if parameters:
        operation["parameters"] = parameters
        statuses.add(400)
    if route.body is not None:
        statuses |= {400, 408, 413}
        schemas[route.body.__name__] = _schema(route.body)
        required = bool(_schema(route.body).get("required"))
        operation["requestBody"] = {
            "required": required,
            "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{route.body.__name__}"}}},
        }
    operation["responses"] = {str(status): _response(route, status) for status in sorted(statuses)}
    return operation


def _response(route: Route, status: int) -> dict[str, Any]:
    good = status == route.success or status in route.also
    schema: dict[str, Any]
    if not good:
        schema, media = {"$ref": "#/components/schemas/Error"}, "application/json"
    else:
        media = route.media
        schema = {"type": "object" if media == "application/json" else "string"}
        if route.path == "/status":
            schema = status_schema.ANSWER
    return {"description": _MEANS[status], "content": {media: {"schema": schema}}}


def _parameters(route: Route) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    if "{rank}" in route.path:
        found.append({"name": "rank", "in": "path", "required": True, "schema": {"type": "integer", "minimum": 0}})
    if "{name}" in route.path:
        found.append({"name": "name", "in": "path", "required": True, "schema": {"type": "string", "maxLength": 100}})
    if route.query is not None:
        described = _schema(route.query)
        for name, schema in described["properties"].items():
            shown = {key: value for key, value in schema.items() if key != "description"}
            found.append({
                "name": name, "in": "query", "required": name in described.get("required", ()),
                "description": schema.get("description", ""), "schema": shown,
            })  # fmt: skip
    return found


def _schema(model: type[Asked]) -> dict[str, Any]:
    schema = model.model_json_schema()
    schema.pop("title", None)
    for field in schema["properties"].values():
        field.pop("title", None)
    return schema
