"""Contents of a built AMI: version-info, SBOM, differences."""
