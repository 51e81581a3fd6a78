"""boto3: an object put (with Expect: 100-continue) and got again; the requests are signed."""

import sys

import boto3
from botocore.config import Config

config = Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}, connect_timeout=20, read_timeout=20)
client = boto3.client(
    "s3",
    endpoint_url=sys.argv[1],
    region_name="us-east-1",
    aws_access_key_id="AKIATEST",
    aws_secret_access_key="not-a-real-secret",
    config=config,
)
body = bytes(range(256)) * 1024
client.put_object(Bucket="bucket", Key="folder/object", Body=body)
found = client.get_object(Bucket="bucket", Key="folder/object")["Body"].read()
print("unchanged" if found == body else "changed on the way")
