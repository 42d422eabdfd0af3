"""AMI Kiln: from one matrix file to verified NVIDIA GPU AMIs."""
