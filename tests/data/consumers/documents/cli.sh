#!/bin/bash
# One p4d.24xlarge of al2023/lts/eks/x86_64, channel stable.
# Set SUBNET, GROUP and KEY first.
set -euo pipefail
: "${SUBNET:?} ${GROUP:?} ${KEY:?}"
aws ec2 run-instances --region us-east-1 --cli-input-json "$(cat <<END
{
  "ImageId": "resolve:ssm:/ami-kiln/al2023/lts/eks/x86_64/stable/image_id",
  "InstanceType": "p4d.24xlarge",
  "MetadataOptions": {
    "HttpTokens": "required",
    "HttpPutResponseHopLimit": 2,
    "InstanceMetadataTags": "enabled"
  },
  "BlockDeviceMappings": [
    {
      "DeviceName": "/dev/xvda",
      "Ebs": {
        "VolumeSize": 100,
        "VolumeType": "gp3",
        "Encrypted": true,
        "DeleteOnTermination": true
      }
    }
  ],
  "TagSpecifications": [
    {
      "ResourceType": "instance",
      "Tags": [
        {
          "Key": "Name",
          "Value": "gpu-al2023-lts-eks"
        },
        {
          "Key": "kiln:line",
          "Value": "al2023/lts/eks/x86_64"
        },
        {
          "Key": "kiln:channel",
          "Value": "stable"
        },
        {
          "Key": "kiln:mig-config",
          "Value": "all-1g.5gb"
        }
      ]
    },
    {
      "ResourceType": "volume",
      "Tags": [
        {
          "Key": "Name",
          "Value": "gpu-al2023-lts-eks"
        },
        {
          "Key": "kiln:line",
          "Value": "al2023/lts/eks/x86_64"
        },
        {
          "Key": "kiln:channel",
          "Value": "stable"
        },
        {
          "Key": "kiln:mig-config",
          "Value": "all-1g.5gb"
        }
      ]
    }
  ],
  "NetworkInterfaces": [
    {
      "NetworkCardIndex": 0,
      "DeviceIndex": 0,
      "InterfaceType": "interface",
      "Groups": [
        "$GROUP"
      ],
      "DeleteOnTermination": true,
      "SubnetId": "$SUBNET"
    },
    {
      "NetworkCardIndex": 0,
      "DeviceIndex": 1,
      "InterfaceType": "efa-only",
      "Groups": [
        "$GROUP"
      ],
      "DeleteOnTermination": true,
      "SubnetId": "$SUBNET"
    },
    {
      "NetworkCardIndex": 1,
      "DeviceIndex": 0,
      "InterfaceType": "efa-only",
      "Groups": [
        "$GROUP"
      ],
      "DeleteOnTermination": true,
      "SubnetId": "$SUBNET"
    },
    {
      "NetworkCardIndex": 2,
      "DeviceIndex": 0,
      "InterfaceType": "efa-only",
      "Groups": [
        "$GROUP"
      ],
      "DeleteOnTermination": true,
      "SubnetId": "$SUBNET"
    },
    {
      "NetworkCardIndex": 3,
      "DeviceIndex": 0,
      "InterfaceType": "efa-only",
      "Groups": [
        "$GROUP"
      ],
      "DeleteOnTermination": true,
      "SubnetId": "$SUBNET"
    }
  ],
  "IamInstanceProfile": {
    "Name": "gpu-telemetry"
  },
  "Placement": {
    "GroupName": "near by"
  },
  "CapacityReservationSpecification": {
    "CapacityReservationTarget": {
      "CapacityReservationId": "cr-0123456789abcdef0"
    }
  },
  "InstanceMarketOptions": {
    "MarketType": "capacity-block"
  },
  "KeyName": "$KEY",
  "MinCount": 1,
  "MaxCount": 1
}
END
)"
