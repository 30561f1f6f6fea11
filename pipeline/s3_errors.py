"""What a store's errors mean: which pass by themselves, and what to do about the others."""

import re

import botocore.exceptions as aws
from urllib3.exceptions import HTTPError

PASSING_CODES = {
    "SlowDown", "Throttling", "ThrottlingException", "TooManyRequests", "RequestLimitExceeded", "RequestTimeout",
    "ConditionalRequestConflict", "OperationAborted", "BadDigest",
}  # fmt: skip
PASSING_ERRORS = (
    aws.EndpointConnectionError,
    aws.ConnectTimeoutError,
    aws.ReadTimeoutError,
    aws.ConnectionClosedError,
    aws.ProxyConnectionError,
    aws.ResponseStreamingError,
    aws.IncompleteReadError,
    aws.CredentialRetrievalError,  # the metadata service of an instance or pod has hiccups too
    aws.MetadataRetrievalError,
    HTTPError,
    ConnectionError,
    TimeoutError,
)
MISSING = {"NoSuchKey", "404", "NotFound"}
# Answers that mean something to the caller.
EXPECTED_CODES = MISSING | {"NoSuchUpload", "PreconditionFailed", "412", "InvalidRange", "416"}


def code_of(error: BaseException | None) -> str:
    """The S3 error code of a ClientError, e.g. `NoSuchBucket`; empty for other errors."""
    return str(error.response.get("Error", {}).get("Code", "")) if isinstance(error, aws.ClientError) else ""


def is_passing(error: BaseException) -> bool:
    """Whether the same request may succeed later: no connection, time-outs, 5xx, throttling."""
    if isinstance(error, aws.ClientError):
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return (status >= 500 and status != 501) or code_of(error) in PASSING_CODES
    if isinstance(error, aws.SSLError):  # a kind of ConnectionError for botocore, but it does not pass
        return "CERTIFICATE_VERIFY_FAILED" not in str(error) and "WRONG_VERSION_NUMBER" not in str(error)
    return isinstance(error, PASSING_ERRORS)


def is_signed(error: BaseException) -> bool:
    """Whether an error repeats what the request was signed with, so that it must be shown nowhere."""
    return bool(SIGNED.search(f"{error} {getattr(error, 'kwargs', {}).get('error', '')}"))


EXPIRED = (
    "the session token has expired; get new credentials and start the same run again, which goes on from its last "
    "complete checkpoint"
)
# A header or an address with the credentials in it, which an HTTP library repeats when it refuses to send it.
SIGNED = re.compile(r"AWS4-HMAC|X-Amz-(Signature|Security-Token|Credential)|x-amz-security-token", re.IGNORECASE)
MEANING = {
    "NoSuchBucket": "the bucket does not exist; create it, or correct storage.path",
    "InvalidAccessKeyId": "the store does not know this access key id, or no longer; check AWS_ACCESS_KEY_ID or the "
    "profile",
    "SignatureDoesNotMatch": "the secret access key does not belong to this access key id; "
    "check AWS_SECRET_ACCESS_KEY or the profile",
    "RequestTimeTooSkewed": "this machine's clock and the store's differ by more than 15 minutes; set the clock (NTP)",
    "ExpiredToken": EXPIRED,
    "ExpiredTokenException": EXPIRED,
    "TokenRefreshRequired": EXPIRED,
    "RequestExpired": EXPIRED,
    "InvalidToken": "the session token is not valid; unset AWS_SESSION_TOKEN or get new credentials",
    "NotImplemented": "the store does not support this request",
    "KMS.NotFoundException": "the KMS key does not exist; correct storage.kms_key_id",
}


def explain(error: BaseException) -> str:
    """One clause that says what an error means and, where known, what would be right. Never holds a secret."""
    if isinstance(error, aws.ClientError):
        code = code_of(error)
        said = error.response.get("Error", {})
        if code in ("PermanentRedirect", "AuthorizationHeaderMalformed", "301", "IllegalLocationConstraintException"):
            right = said.get("Region") or error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get(
                "x-amz-bucket-region", "another one"
            )
            return f"wrong region; the bucket is in {right}: set storage.region ({code})"
        if code in ("AccessDenied", "403", "Forbidden", "AllAccessDisabled"):
            return f"forbidden; the identity lacks the permission ({code})"
        return f"{MEANING.get(code, said.get('Message') or 'refused')} ({code})"
    text = f"{error} {getattr(error, 'kwargs', {}).get('error', '')}"
    if is_signed(error):
        return f"the request cannot be sent ({type(error).__name__}); look for a line end in the credentials"
    if isinstance(error, (aws.NoCredentialsError, aws.PartialCredentialsError)):
        return (
            "no credentials found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, "
            "or give the pod a workload identity"
        )
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return "the server's certificate is not signed by a known authority; set storage.ca_bundle"
    if "WRONG_VERSION_NUMBER" in text:
        return "the server does not speak TLS; write http:// in storage.endpoint_url"
    if any(sign in text for sign in ("NameResolutionError", "Name or service not known", "name resolution")):
        return "endpoint unreachable: its host name is not known (DNS)"
    if "Connection refused" in text:
        return "endpoint unreachable: connection refused"
    if isinstance(error, (aws.ConnectTimeoutError, aws.ReadTimeoutError)):
        return "endpoint unreachable: no answer in time"
    return str(error) or type(error).__name__
