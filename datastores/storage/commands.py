"""Copyable commands for S3 clients of a bucket. Pure. Clients that support it get keys from the environment."""

from __future__ import annotations

from dataclasses import dataclass

# Placeholders for unknown keys.
ACCESS_KEY, SECRET_KEY = "ACCESS_KEY", "SECRET_KEY"


@dataclass(frozen=True)
class Commands:
    title: str
    text: str

    @property
    def id(self) -> str:
        return "commands-" + self.title.lower().replace(" ", "-")


def commands(endpoint: str, region: str, bucket: str, access_key: str = "", secret_key: str = "") -> list[Commands]:
    """For each client: sign in, list, copy a folder. Buckets are addressed by path, not by host name."""
    key, secret = access_key or ACCESS_KEY, secret_key or SECRET_KEY
    environment = f"export AWS_ACCESS_KEY_ID={key} AWS_SECRET_ACCESS_KEY={secret} AWS_DEFAULT_REGION={region}"
    return [
        Commands(
            "AWS CLI",
            f"{environment}\nexport AWS_ENDPOINT_URL_S3={endpoint}\n"
            f"aws s3 ls --recursive s3://{bucket}/\naws s3 cp --recursive FOLDER s3://{bucket}/FOLDER/",
        ),
        Commands(
            "boto3",
            "import boto3\nfrom botocore.config import Config\n\n"
            f's3 = boto3.client(\n    "s3", endpoint_url="{endpoint}", region_name="{region}",\n'
            f'    aws_access_key_id="{key}", aws_secret_access_key="{secret}",\n    config=Config(signature_version="s3v4"),\n)\n'
            f's3.upload_file("FILE", "{bucket}", "FILE")\n'
            f'print([each["Key"] for each in s3.list_objects_v2(Bucket="{bucket}").get("Contents", [])])',
        ),
        Commands(
            "s5cmd",
            f"{environment}\nexport S3_ENDPOINT_URL={endpoint}\n"
            f"s5cmd ls 's3://{bucket}/*'\ns5cmd cp FOLDER/ s3://{bucket}/FOLDER/",
        ),
        Commands(
            "rclone",
            f"export RCLONE_CONFIG_ML_TYPE=s3 RCLONE_CONFIG_ML_PROVIDER=Other RCLONE_CONFIG_ML_ENDPOINT={endpoint}\n"
            f"export RCLONE_CONFIG_ML_ACCESS_KEY_ID={key} RCLONE_CONFIG_ML_SECRET_ACCESS_KEY={secret}\n"
            f"export RCLONE_CONFIG_ML_REGION={region} RCLONE_CONFIG_ML_FORCE_PATH_STYLE=true\n"
            f"rclone ls ml:{bucket}\nrclone copy FOLDER ml:{bucket}/FOLDER",
        ),
        Commands(
            "mc",
            f"mc alias set ml {endpoint} {key} {secret}\nmc ls --recursive ml/{bucket}\n"
            f"mc cp --recursive FOLDER/ ml/{bucket}/FOLDER/",
        ),
    ]
