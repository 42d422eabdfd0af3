# Written by `./invoke render` from amis.yaml: edit there.
packer {
  required_plugins {
    amazon = {
      source  = "github.com/hashicorp/amazon"
      version = "1.8.0"
    }
  }
}
