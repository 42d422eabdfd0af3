/* AMI Kiln lab stand-in */
