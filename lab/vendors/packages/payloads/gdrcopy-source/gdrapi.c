const char gdrapi_version[] = "@version@ (AMI Kiln lab stand-in)";
