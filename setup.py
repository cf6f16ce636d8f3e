"""Lists the packages: adapters/ and prompts/ become agentspec.adapters and agentspec.prompts."""

from setuptools import find_packages, setup

# Package name -> folder, for what does not lie inside agentspec/.
MAPPED = {"agentspec.adapters": "adapters", "agentspec.prompts": "prompts"}

packages = find_packages(include=["agentspec", "agentspec.*"])
for package, folder in MAPPED.items():
    packages.append(package)
    packages += [f"{package}.{child}" for child in find_packages(folder)]

setup(packages=packages, package_dir=MAPPED)
