/* AMI Kiln lab stand-in for the EFA module: a .modinfo section and nothing to load. */
#define INFO(tag, text) \
    static const char info_##tag[] __attribute__((section(".modinfo"), used, aligned(1))) = #tag "=" text

INFO(version, "@version@g");
INFO(license, "Dual BSD/GPL");
INFO(vermagic, RELEASE " SMP mod_unload modversions ");
INFO(name, "efa");
INFO(gdr, "Y");
INFO(description, "AMI Kiln lab stand-in");
