"""What is on a built AMI: version-info, SBOM, differences."""
