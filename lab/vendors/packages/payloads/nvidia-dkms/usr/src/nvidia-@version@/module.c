/* AMI Kiln lab stand-in for an NVIDIA kernel module: a .modinfo section and nothing to load. */
#define INFO(tag, text) \
    static const char info_##tag[] __attribute__((section(".modinfo"), used, aligned(1))) = #tag "=" text

INFO(version, "@version@");
INFO(license, "@license@");
INFO(srcversion, "@srcversion@");
INFO(vermagic, RELEASE " SMP mod_unload modversions ");
INFO(name, NAME);
INFO(retpoline, "Y");
INFO(description, "AMI Kiln lab stand-in");
