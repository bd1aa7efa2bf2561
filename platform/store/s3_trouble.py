"""What an error of boto3 means: a reason in words, the next step, and whether it may pass by itself.

By name and code, so that botocore, which takes 100 ms to import, is needed only where it has already been used. No
message repeats an endpoint or a credential: botocore's own texts do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_CONNECTION = {
    "EndpointConnectionError",
    "ConnectTimeoutError",
    "ReadTimeoutError",
    "ConnectionClosedError",
    "ConnectionError",
    "HTTPClientError",
    "ProxyConnectionError",
    "ResponseStreamingError",
    "IncompleteReadError",
    "RetriesExceededError",
    "ProtocolError",
}
_NO_CREDENTIALS = {
    "NoCredentialsError",
    "PartialCredentialsError",
    "CredentialRetrievalError",
    "ProfileNotFound",
    "TokenRetrievalError",
    "SSOTokenLoadError",
    "UnauthorizedSSOTokenError",
    "NoAuthTokenError",
}
_REJECTED = {
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "ExpiredToken",
    "ExpiredTokenException",
    "InvalidToken",
    "TokenRefreshRequired",
    "InvalidClientTokenId",
    "AuthFailure",
}
_REGION = {"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "301"}
_FULL = {"QuotaExceeded", "XMinioStorageFull", "InsufficientStorage", "507"}
_BUSY = {
    "SlowDown",
    "RequestTimeout",
    "InternalError",
    "ServiceUnavailable",
    "Throttling",
    "ThrottlingException",
    "429",
}

ENDPOINT = "AWS_ENDPOINT_URL"


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """may_pass: worth another try. missing_object: an answer, no failure. refused: a condition does not hold."""

    reason: str
    next_step: str = ""
    may_pass: bool = False
    missing_object: bool = False
    refused: bool = False
    conflict: bool = False


def diagnose(error: BaseException) -> Trouble | None:
    """None for what is no error of S3 or of the way there."""
    for each in _chain(error):
        names = {kind.__name__ for kind in type(each).__mro__}
        if "ClientError" in names:
            return _by_code(getattr(each, "response", {}))
        if names & _NO_CREDENTIALS:
            return Trouble(
                reason="there are no credentials",
                next_step="Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or AWS_PROFILE, or give the machine a role",
            )
        if "SSLError" in names:
            return Trouble(reason="the server's certificate is not trusted", next_step="Set AWS_CA_BUNDLE")
        if names & _CONNECTION:
            return Trouble(reason="no S3 server answers", next_step=f"Check {ENDPOINT} and the network", may_pass=True)
        if "FlexibleChecksumError" in names:
            return Trouble(reason="what arrived does not match its checksum", may_pass=True)
        if "NoRegionError" in names:
            return Trouble(reason="no region is given", next_step="Set AWS_DEFAULT_REGION")
        if "ParamValidationError" in names or "InvalidBucketNameError" in names:
            return Trouble(reason="S3 cannot have a bucket of this name", next_step="Change run.store")
        if "BotoCoreError" in names:
            return Trouble(reason=type(each).__name__, next_step="Check the settings of AWS in the environment")
        if isinstance(each, ValueError) and "endpoint" in str(each).lower():
            return Trouble(reason=f"the address in {ENDPOINT} is none", next_step="Give http(s)://HOST:PORT")
    return None


def _chain(error: BaseException) -> list[BaseException]:
    """The error and what it was raised from: boto3 wraps errors of transfers."""
    chain: list[BaseException] = []
    at: BaseException | None = error
    while at is not None and len(chain) < 5:
        chain.append(at)
        at = at.__cause__ or at.__context__
    return chain


def _by_code(response: Any) -> Trouble:
    code = str(response.get("Error", {}).get("Code", ""))
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    if code == "NoSuchBucket":
        return Trouble(reason="the bucket does not exist", next_step=f"Make it, or change run.store or {ENDPOINT}")
    if code in ("NoSuchKey", "404", "NotFound"):
        return Trouble(reason="it does not exist", missing_object=True)
    if code == "PreconditionFailed" or status == 412:
        return Trouble(reason="a condition does not hold", refused=True)
    if code in ("ConditionalRequestConflict", "OperationAborted") or status == 409:
        return Trouble(reason="another write is under way", refused=True, conflict=True)
    if code in _REJECTED:
        return Trouble(reason=f"the credentials are not accepted ({code})", next_step="Renew them")
    if code == "RequestTimeTooSkewed":
        return Trouble(reason="this machine's clock is wrong", next_step="Set it")
    if code in _REGION or status == 301:
        return Trouble(reason=f"the bucket is in another region ({code})", next_step="Set AWS_DEFAULT_REGION to it")
    if code in _FULL or status == 507:
        return Trouble(reason="the storage is full or its quota is used up", next_step="Make room")
    if status in (401, 403) or code in ("AccessDenied", "403", "AllAccessDisabled"):
        return Trouble(
            reason=f"access is denied ({code})",
            next_step="The credentials need s3:ListBucket on the bucket, and s3:GetObject, s3:PutObject and "
            "s3:DeleteObject on its objects",
        )
    if status >= 500 or code in _BUSY or status == 429:
        return Trouble(reason=f"the server is overloaded or broken ({code or status})", may_pass=True)
    return Trouble(reason=f"the server answers {code or status}", next_step="Check run.store and the server")
