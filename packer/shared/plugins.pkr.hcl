# Written by `./invoke render` from templates/packer/: edit there.
packer {
  required_plugins {
    amazon = {
      source  = "github.com/hashicorp/amazon"
      version = ">= 1.8.2, < 1.9.0"
    }
  }
}
