"""Cookies of the dashboard: scripts cannot read them, and over https no other host can plant one."""

from starlette.requests import HTTPConnection
from starlette.responses import Response


def is_secure(request: HTTPConnection) -> bool:
    """Whether the browser uses https, to this server or, by its headers, to a proxy."""
    return request.url.scheme == "https" or request.headers.get("x-forwarded-proto") == "https"


def read_cookie(request: HTTPConnection, name: str) -> str:
    """The value that the browser sent; empty without one."""
    return request.cookies.get(_full_name(request, name), "")


def set_cookie(
    request: HTTPConnection, response: Response, name: str, value: str, lasts_s: int | None, *, strict: bool = False
) -> None:
    """Sets a cookie that scripts cannot read."""
    response.set_cookie(
        _full_name(request, name),
        value,
        max_age=lasts_s,
        path=_path(request),
        httponly=True,
        samesite="strict" if strict else "lax",
        secure=is_secure(request),
    )


def delete_cookie(request: HTTPConnection, response: Response, name: str) -> None:
    """Deletes a cookie in the browser."""
    response.delete_cookie(
        _full_name(request, name), path=_path(request), secure=is_secure(request), httponly=True, samesite="lax"
    )


def _full_name(request: HTTPConnection, name: str) -> str:
    # Over https a name begins with __Host- (or __Secure- below a path). A browser takes such a cookie only over https,
    # and __Host- only from this very host, so a neighbouring subdomain or a plain http page cannot plant one. (RFC
    # 6265bis, section 4.1.3.)
    if not is_secure(request):
        return name
    return f"__Host-{name}" if _path(request) == "/" else f"__Secure-{name}"


def _path(request: HTTPConnection) -> str:
    return request.scope.get("root_path", "") or "/"
