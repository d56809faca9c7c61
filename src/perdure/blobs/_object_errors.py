"""What went wrong with a bucket, in one line that says what to do.

Servers repeat the signed request in their answers, tokens included: only an answer's status and code are shown.
"""

from __future__ import annotations

import re

from perdure.errors import InvalidInput, PerdureError, StoreFull, Unavailable

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w{1,60})</Code>|\"code\": ?\"?(\w{1,60})")
_SETTING = re.compile(r"Configuration key: '([^']{1,80})' is not valid")
_KEYS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}
_BUCKET = ("NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist")
_UNKNOWN = (
    "SignatureDoesNotMatch", "InvalidAccessKeyId", "ExpiredToken", "InvalidToken", "InvalidClientTokenId",
    "AuthenticationFailed", "TokenRefreshRequired", "InvalidAuthenticationInfo",
)  # fmt: skip
_REGION = ("PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException")
_FULL = ("QuotaExceeded", "XMinioStorageFull", "EntityTooLargeForQuota", "InsufficientAccountStorage")
_METADATA = ("169.254.169.254", "169.254.170.2", "metadata.google.internal")
"""Where clouds hand out credentials to the machines they run: asked for when none were given."""


def is_missing_bucket(error: Exception) -> bool:
    """Whether it is the whole bucket that is not there."""
    return any(words in str(error) for words in _BUCKET)


def explain(error: Exception, where: str, timeout: float) -> PerdureError:
    """The error to raise instead, without a trace of the request."""
    text = str(error)
    scheme = where.partition("://")[0]
    keys = _KEYS.get(scheme, "the credentials")
    status = match[1] if (match := _STATUS.search(text)) else ""
    code = (match[1] or match[2]) if (match := _CODE.search(text)) else ""
    said = " ".join(part for part in (status, code) if part)
    kind = type(error).__name__
    if match := _SETTING.search(text):
        return InvalidInput(f"{where}: {match[1]!a} is no setting of {scheme}: see obstore's names of settings")
    if is_missing_bucket(error):
        return Unavailable(f"{where}: there is no such bucket: create it, or correct its name")
    if any(host in text for host in _METADATA):
        return Unavailable(f"{where}: there are no credentials: set {keys}, or pass config=")
    if code in _REGION or status in ("301", "307") or "incorrectly configured region" in text:
        return Unavailable(f"{where}: the bucket is in another region ({said or kind}): set AWS_REGION or ?region=")
    if code in _UNKNOWN or status == "401" or kind == "UnauthenticatedError":
        return Unavailable(f"{where}: the credentials are not accepted ({said}): check {keys}")
    if code in _FULL or status == "507":
        return StoreFull(f"{where}: there is no space left ({said}): nothing was written")
    if status == "403" or kind == "PermissionDeniedError":
        return Unavailable(f"{where}: permission denied ({said}): allow to list, read, write and delete objects there")
    if "kind: Timeout" in text or "TimedOut" in text:
        return Unavailable(
            f"{where}: no answer within {timeout:g} s: check the endpoint and the network, and try again"
        )
    if "kind: Connect" in text or "kind: Request" in text:
        return Unavailable(f"{where}: the server cannot be reached: check the endpoint and the network, and try again")
    if "URL scheme is not allowed" in text:
        return Unavailable(f"{where}: the endpoint is not https: set AWS_ALLOW_HTTP=true to use it nevertheless")
    if status.startswith("5") or status == "429":
        return Unavailable(f"{where}: the server cannot answer at the moment ({said}): try again later")
    return Unavailable(f"{where}: the request failed ({said or kind}): check the endpoint, the bucket and {keys}")
