"""Runs the S3 test server moto until stdin ends, and accesses its buckets with other S3 clients for the tests.

The first line of stdout has the port and the keys of a user with all permissions; the server refuses other keys.
Then each line of stdin is a request in words, and the answer is a line that begins with "ok", or an error.
"""

import json
import logging
import sys
import traceback

import boto3
import numpy as np
import zarr
from moto import settings
from moto.server import ThreadedMotoServer

logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
host, port = server.get_host_and_port()
URL = f"http://{host}:{port}"


def client(service, key, secret):
    keys = {"aws_access_key_id": key, "aws_secret_access_key": secret}
    return boto3.client(service, endpoint_url=URL, region_name="us-east-1", **keys)


def user():
    """Creates a user with all rights, and returns the user's key pair. Moto accepts any key before the assignment to
    `settings`, so that this function can create the user. Afterwards moto checks keys."""
    iam = client("iam", "any", "any")
    iam.create_user(UserName="user")
    rule = {"Effect": "Allow", "Action": "*", "Resource": "*"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [rule]})
    iam.put_user_policy(UserName="user", PolicyName="all", PolicyDocument=policy)
    key = iam.create_access_key(UserName="user")["AccessKey"]
    settings.INITIAL_NO_AUTH_ACTION_COUNT = 0
    return key["AccessKeyId"], key["SecretAccessKey"]


KEY, SECRET = user()
s3 = client("s3", KEY, SECRET)


def opened(bucket, path, mode):
    options = {"key": KEY, "secret": SECRET, "endpoint_url": URL}
    return zarr.open(f"s3://{bucket}/{path}", mode=mode, storage_options=options)


def read(bucket, path):
    """Returns the shape of an array, and the sum of its numbers, each multiplied by its flat index plus one."""
    array = opened(bucket, path, "r")
    numbers = array[...].reshape(-1).astype(np.uint64)
    total = int((numbers * np.arange(1, len(numbers) + 1, dtype=np.uint64)).sum())
    return f"{'x'.join(map(str, array.shape))} {total}"


def write(bucket, path):
    """Creates an array of 30 times 40 whose numbers are their indices."""
    options = {"key": KEY, "secret": SECRET, "endpoint_url": URL}
    array = zarr.create_array(
        f"s3://{bucket}/{path}", shape=(30, 40), chunks=(7, 9), dtype="uint32", storage_options=options
    )
    array[...] = np.arange(1200, dtype=np.uint32).reshape(30, 40)
    return ""


ACTIONS = {
    "make": lambda bucket: s3.create_bucket(Bucket=bucket) and "",
    "remove": lambda bucket: s3.delete_bucket(Bucket=bucket) and "",
    "uploads": lambda bucket: len(s3.list_multipart_uploads(Bucket=bucket).get("Uploads", [])),
    "read": read,
    "write": write,
}

print(port, KEY, SECRET, flush=True)
for line in sys.stdin:
    words = line.split()
    try:
        print("ok", ACTIONS[words[0]](*words[1:]), flush=True)
    except Exception:
        traceback.print_exc()
        print("failed", flush=True)
